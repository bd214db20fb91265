"""The fault table: whatever goes wrong on either side, at any phase, what the router does about it."""
