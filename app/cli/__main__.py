"""`python -m app.cli`, where no command is on the path."""

from app.cli import main

main()
