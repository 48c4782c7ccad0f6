"""What-if: a discrete-event model of the cluster, calibrated on a trace, which it must reproduce before it answers anything else."""
