"""How much memory of this machine a KV cache may take."""

import os


def free_host_bytes() -> int:
    """Free memory; half of all where the system does not tell what is free (macOS)."""
    page = os.sysconf("SC_PAGE_SIZE")
    if "SC_AVPHYS_PAGES" in os.sysconf_names:
        return page * os.sysconf("SC_AVPHYS_PAGES")
    return page * os.sysconf("SC_PHYS_PAGES") // 2
