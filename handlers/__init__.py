"""HTTP: routes, authentication, request parsing and responses."""
