"""Where rows come from: files, tables, hubs, and their fingerprints."""
