"""The runtime carries out what the pure rooms decide, on clocks, sockets and files."""
