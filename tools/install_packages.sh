#!/bin/sh
# Installs the Debian packages that k3 needs, by group: build, fuzz, web (a browser for the test of the built-in page). Does nothing when all are there.
set -eu

packages=""
for group in "$@"; do
  case "$group" in
    build) packages="$packages g++ make cmake ninja-build ccache mold pkg-config libfmt-dev libspdlog-dev libsimdjson-dev
      nlohmann-json3-dev libcli11-dev libxxhash-dev libzstd-dev libpcre2-dev libedit-dev liburing-dev
      libboost1.81-dev prometheus-cpp-dev liblmdb-dev
      libgtest-dev libgmock-dev librapidcheck-dev libbenchmark-dev zstd python3 python3-venv git" ;;
    web) packages="$packages chromium chromium-driver" ;;
    fuzz) packages="$packages clang libfuzzer-14-dev libclang-rt-14-dev" ;;
    *) echo "install_packages.sh: unknown group $group" >&2; exit 2 ;;
  esac
done

missing=""
for package in $packages; do
  dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q "install ok installed" || missing="$missing $package"
done
[ -z "$missing" ] && exit 0

if [ "$(id -u)" -ne 0 ]; then
  echo "These Debian packages are missing:$missing" >&2
  echo "Install them as root: apt-get install --no-install-recommends$missing" >&2
  exit 1
fi
echo "installing packages:$missing"
export DEBIAN_FRONTEND=noninteractive
apt-get -o DPkg::Lock::Timeout=300 update -qq
# shellcheck disable=SC2086  # a list of words
apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends $missing > /dev/null
