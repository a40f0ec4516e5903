"""The command line: argv in, exit code out. One module per group of commands, loaded when it is chosen."""
