"""Who samples: the in-process torch engine, behind the protocol in `base`."""
