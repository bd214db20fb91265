"""Several processes of one router on one port.

    supervisor      plain and synchronous: binds the ports, forks the others, replaces those that die
      admin         admin port, source of workers, one view of the metrics; tells the serving processes
      serving × N   clients, each on a socket of its own for the one port (SO_REUSEPORT)

Limits, breakers, queues and prefix memory are each serving process's own; the list of workers, and what the
admin API changes in it, reach all of them over a Unix socket (`channel`).
"""
