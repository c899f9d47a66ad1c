#!/bin/sh
# Starts the swarm server of a container: makes a key where none is given, prints it with the lines that use it, and
# becomes the server, so that signals reach it. Further arguments go to `ajet-swarm start`.
set -eu
experiments=${AJET_EXP_DIR:-/data/experiments}
logs=${AJET_LOG_DIR:-/data/logs}
port=${AJET_PORT:-10086}

for folder in "$experiments" "$logs"; do
    if ! mkdir -p "$folder" 2>/dev/null || [ ! -w "$folder" ]; then
        echo "$folder cannot be written by user $(id -u). Make the host's folder yours before the container starts, and run it with: --user \"\$(id -u):\$(id -g)\"" >&2
        exit 1
    fi
done

if [ -n "${AJET_SWARM_KEY:-}" ]; then
    shown='the one you gave in AJET_SWARM_KEY'
    use='AJET_SWARM_KEY=…'
else
    # Where the server itself keeps the key it generates: the same one at every start.
    file=$experiments/.server/admin.key
    if [ ! -s "$file" ]; then
        (umask 077 && mkdir -p "$experiments/.server" \
            && python -c 'import secrets; print("ajet-" + secrets.token_urlsafe(32), end="")' >"$file.new" && mv "$file.new" "$file")
    fi
    AJET_SWARM_KEY=$(cat "$file")
    export AJET_SWARM_KEY
    shown=$AJET_SWARM_KEY
    use="AJET_SWARM_KEY=$AJET_SWARM_KEY"
fi
address=http://${AJET_ADVERTISE:-localhost:$port}
cat <<END
AgentJet swarm server
  key    $shown
  train  $use python tutorial/example_werewolves_swarm/agent_roll.py --swarm-url $address
  watch  $use ajet-swarm overwatch --swarm-url $address
From another machine, write this one's name in place of localhost.
END
exec ajet-swarm start --host 0.0.0.0 --swarm-port "$port" --exp-dir "$experiments" --log-dir "$logs" "$@"
