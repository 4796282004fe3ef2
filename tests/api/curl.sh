#!/usr/bin/env bash
# The API through curl: statuses, headers and bodies as they are on the wire.
# Usage: curl.sh BASE_URL
set -euo pipefail
base=$1
head=$(mktemp)
body=$(mktemp)
trap 'rm -f "$head" "$body"' EXIT
failed=0

# check NAME STATUS PATTERN CURL-ARGUMENTS...: the status and a pattern that the answer must hold.
check() {
    local name=$1 status=$2 pattern=$3 found
    shift 3
    # curl also fails when the server refuses a body before it has all been sent: the status counts.
    found=$(curl -sN --max-time 120 -D "$head" -o "$body" -w '%{http_code}' "$@") || true
    if [ "$found" = "$status" ] && grep -q -- "$pattern" "$head" "$body"; then
        echo "PASS curl $name"
    else
        echo "FAIL curl $name: status $found, expected $status and $pattern in:"
        head -c 2000 "$head" "$body"
        failed=1
    fi
}

chat=$base/v1/chat/completions
hello='{"messages":[{"role":"user","content":"Hello"}],"max_tokens":4'

check "health" 200 '"status":"ok"' "$base/health"
check "models" 200 '"object":"list"' "$base/v1/models"
check "props" 200 '"sampling_source"' "$base/props"
check "chat" 200 '"object":"chat.completion"' "$chat" -d "$hello}"
check "chat, no content type" 200 '"finish_reason"' "$chat" -H 'Content-Type:' -d "$hello}"
check "stream ends" 200 'data: \[DONE\]' "$chat" -d "$hello,\"stream\":true}"
check "stream's type" 200 'text/event-stream' "$chat" -d "$hello,\"stream\":true}"
check "completion" 200 '"object":"text_completion"' "$base/v1/completions" -d '{"prompt":"Hello","max_tokens":2}'
check "no JSON" 400 '"code":"invalid_json"' "$chat" -d '{'
check "no messages" 400 '"param":"messages"' "$chat" -d '{}'
check "a wrong type" 400 '"param":"temperature"' "$chat" -d "$hello,\"temperature\":\"hot\"}"
check "several answers" 400 '"param":"n"' "$chat" -d "$hello,\"n\":2}"
check "no such path" 404 '"invalid_request_error"' "$base/v1/nothing"
check "wrong method" 405 '"error"' "$chat"
check "too large" 413 '"code":"body_too_large"' "$chat" --data-binary @<(head -c 40000000 /dev/zero)
exit $failed
