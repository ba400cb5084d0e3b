"""The command line, a module for each group of commands; the entry point is `main`."""
