"""Stars of network namespaces, with racks or without, with exact links: what is measured and tested runs on them."""
