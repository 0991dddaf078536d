"""pytest takes this folder, by its name, for a package `mininet` without an __init__.py. Where Mininet is installed, it
comes in its place."""

import contextlib

with contextlib.suppress(ImportError):
    from wiresum_mininet.mininet_package import import_mininet

    import_mininet()
