"""Who may do what: principals, users and rules, without I/O."""
