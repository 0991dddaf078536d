"""`wiresum backup` and `wiresum restore`: a controller's state in one file, and back.

`archive` is the form of the file, and what of it is believed; `parts` what is in it, and where it belongs; `command`
what people type.
"""
