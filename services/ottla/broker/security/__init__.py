"""Who may do what: principals come from the connection, answers from an `Authorizer`."""
