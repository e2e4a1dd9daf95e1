"""What runs in the cluster: the steps' programs that create jobs on several nodes, and the program of each node."""
