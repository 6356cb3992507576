"""Other libraries' interfaces, by name, on our fleets; each is a module to import from."""
