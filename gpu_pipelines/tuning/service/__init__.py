"""A study whose trials a service starts, each on its own machines: what is common to all services.

The service chooses the values, begins trials and ends those that fall behind. This package adds what it cannot do: a
trial that continues after a preemption, a budget in dollars, the report and the winner. Trials share only a folder.
"""
