"""The runtime carries out what the pure rooms decide: clocks, sockets, threads and files are here."""
