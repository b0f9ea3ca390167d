"""Any array becomes a checked buffer: an address, an element count, a dtype and a device."""
