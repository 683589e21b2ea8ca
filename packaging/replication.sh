#!/bin/sh
# Lets the standby of compose.yaml copy this server.
echo "host replication all all trust" >>"$PGDATA/pg_hba.conf"
