#!/bin/sh
# Make a CA, and one certificate for all brokers of compose.yaml, in the folder tls beside this file.
# They last for 90 days; run it again before that, and brokers take the new ones within a minute.
# The key of the CA is not kept: with a new certificate there is a new CA.
set -eu
cd "$(dirname "$0")"
mkdir -p -m 700 tls # the user of the containers reads the key, so nobody else may come here
cd tls
names=DNS:broker-a1,DNS:broker-a2,DNS:broker-b1,DNS:reader-b1,DNS:localhost,IP:127.0.0.1
new="openssl req -x509 -nodes -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -days 90"
$new -keyout ca.key -out ca.new -subj "/CN=memq compose" \
    -addext keyUsage=critical,keyCertSign,cRLSign 2>/dev/null
$new -keyout broker-key.new -out broker.new -subj /CN=broker -CA ca.new -CAkey ca.key \
    -addext basicConstraints=critical,CA:FALSE -addext keyUsage=critical,digitalSignature \
    -addext extendedKeyUsage=serverAuth -addext "subjectAltName=$names" 2>/dev/null
rm ca.key
chmod 644 ca.new broker.new broker-key.new
# In place, for the containers have these very files.
for name in ca broker broker-key; do cat "$name.new" >"$name.pem" && rm "$name.new"; done
echo "made $PWD: give clients ca.pem"
