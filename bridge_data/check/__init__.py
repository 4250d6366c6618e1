"""What is wrong with data: every shard, index, part and field, and the parts that samples lack; where two values
differ first."""
