"""What edgert costs, measured on the machine at hand, each figure beside what it is compared with."""
