"""A study whose trials a service starts, each on machines of its own: what is the same for all services.

The service chooses the values, begins trials and ends those that fall behind. What it cannot do is here: a trial that
goes on after a preemption, a budget in dollars, the report and the winner. Trials know of each other by a folder alone.
"""
