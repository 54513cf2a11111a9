"""The command line of this distribution, and the only room that prints."""
