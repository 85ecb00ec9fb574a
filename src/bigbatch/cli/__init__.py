"""What runs from the command line."""
