"""Mock engines for the router's black-box tests: raw HTTP on asyncio, and every way to fail."""
