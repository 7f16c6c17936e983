"""The `ottla` command: what starts the services, and what a person types every day.

One file per group of commands. A command's module imports at its top what costs nothing and inside its function what
costs something (clients, the broker, progress bars), so that `ottla dev` is ready before anyone starts to wait.

Nothing else in Ottla imports this package.
"""
