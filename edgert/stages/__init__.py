"""TODO edgert.stages"""
