"""A stand-in for stock SGLang: the same command line, routes and life, no model. See launch_server."""
