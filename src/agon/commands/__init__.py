"""What each command of the command line does; `cli` only reads its arguments."""
