"""Pure planning: what is wanted and what is there in, actions and a status out. No I/O, no clock."""
