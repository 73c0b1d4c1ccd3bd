"""`python -m cachequant.cli`, the same as the command `cachequant`."""

from cachequant.cli import main

main()
