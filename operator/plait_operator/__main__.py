"""`python -m plait_operator`."""

from plait_operator.command import main

main()
