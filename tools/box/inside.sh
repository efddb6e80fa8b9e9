#!/bin/sh
# Runs a command in a box. It is called in namespaces of its own, so every mount here ends with the command.
# usage: inside.sh BASE BOX WHEELS COMMAND ...
set -eu
base=$1 box=$2 wheels=$3
shift 3
mkdir -p "$box/upper" "$box/work" "$box/root"
mount -t overlay overlay -o "lowerdir=$base,upperdir=$box/upper,workdir=$box/work" "$box/root"
cd "$box/root"
mkdir -p dev/shm dev/pts wheels
for node in null zero full random urandom tty; do
  [ -e "dev/$node" ] || touch "dev/$node"
  mount --bind "/dev/$node" "dev/$node"
done
mount -t tmpfs tmpfs dev/shm
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
ln -sf pts/ptmx dev/ptmx
ln -sfn /proc/self/fd dev/fd
mount -t proc proc proc
mount --bind "$wheels" wheels
mount -o remount,bind,ro wheels
cat /etc/resolv.conf >etc/resolv.conf
hostname box
exec chroot . "$@"
