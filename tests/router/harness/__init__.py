"""What the router's black-box tests share: the router as a process, a raw client, and measures of both."""
