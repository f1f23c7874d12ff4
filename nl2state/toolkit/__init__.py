"""Built on the protocols alone, for every backend."""
