"""The router's HTTP routes, one family a file."""
