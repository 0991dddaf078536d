"""`wiresum backup` and `wiresum restore`: copy a controller's state into one file, and back.

`archive` has the form of the file and its checks, `parts` its contents and where they belong, `command` the commands.
"""
