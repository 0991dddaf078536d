"""pytest imports this folder, by its name, as a package `mininet` without an __init__.py. This module replaces that
package by Mininet where it is installed."""

import contextlib

with contextlib.suppress(ImportError):
    from wiresum_mininet.mininet_package import import_mininet

    import_mininet()
