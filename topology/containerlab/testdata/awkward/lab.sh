#!/bin/sh
# Written by relapse: deploys this folder by containerlab (./lab.sh up), and removes all of
# it (./lab.sh down). Both need root.
set -eu
cd "$(dirname "$0")"
bridges='rack-2 outside'
case "${1-}" in
up)
	for bridge in $bridges; do
		ip link add "$bridge" type bridge
		ip link set "$bridge" up
	done
	containerlab deploy --topo node-drain.clab.yml
	;;
down)
	containerlab destroy --cleanup --topo node-drain.clab.yml
	for bridge in $bridges; do
		iptables -D FORWARD -i "$bridge" -j ACCEPT -w 5 2>/dev/null || true
		# The kernel may remove links to containers a minute after them.
		for port in $(ls "/sys/class/net/$bridge/brif"); do
			ip link delete "$port" || true
		done
		ip link delete "$bridge"
	done
	;;
*)
	echo "usage: $0 up|down" >&2
	exit 2
	;;
esac
