"""``python -m flowsim.cli``."""

from flowsim.cli import main

main()
