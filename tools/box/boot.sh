#!/bin/sh
# Boots a box: its systemd becomes process 1. It is called in namespaces of its own, also of control groups and without
# a network, so every mount here ends with it. This machine's kernel settings and devices are only shown.
# usage: boot.sh BASE BOX WHEELS
set -eu
base=$1 box=$2
mkdir -p "$box/upper" "$box/work" "$box/root"
mount -t overlay overlay -o "lowerdir=$base,upperdir=$box/upper,workdir=$box/work" "$box/root"
cd "$box/root"
mount -t tmpfs -o mode=755 tmpfs dev
mkdir dev/shm dev/pts
for node in null zero full random urandom tty; do
  touch "dev/$node"
  mount --bind "/dev/$node" "dev/$node"
done
mount -t tmpfs tmpfs dev/shm
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
# A device of the kernel that opening does nothing to, FUSE's, as a Jetson's memory allocator looks: systemd's list of
# devices that are always allowed has neither.
mknod -m 660 dev/nvmap c 10 229
chown 0:44 dev/nvmap
mount -t proc proc proc
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=1777 tmpfs tmp
hostname box
exec env -i container=box PATH=/usr/sbin:/usr/bin:/sbin:/bin \
  chroot . /lib/systemd/systemd --unit=basic.target --show-status=0
