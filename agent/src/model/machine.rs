//! Tells what a machine could not give a container from what its image lacks.

/// What engines say, in lower case, if a container can't be created or started for want of what this machine has to give: room,
/// ports, networks, volumes, devices; or if it can't get rid of the old one. It would fail with any image.
///
/// Texts of moby, runc, CNI and netavark; those that an image can cause as well, such as a missing user, are not among them.
const SIGNS: [&str; 46] = [
    // Limits of the kernel and of file systems.
    "no space left on device",
    "disk quota exceeded",
    "too many open files",
    "cannot allocate memory",
    "input/output error",
    "structure needs cleaning",
    // Ports and networks.
    "port is already allocated",
    "address already in use",
    "cannot assign requested address",
    "ports are not available",
    "failed to bind host port",
    "driver failed programming external connectivity",
    "failed to set up container networking",
    "failed to create endpoint",
    "failed to create network",
    "iptables failed",
    "netavark",
    "non-overlapping ipv4 address pool",
    "predefined address pools have been fully subnetted",
    // Volumes and folders from elsewhere.
    "error while mounting volume",
    "failed to mount local volume",
    "bind source path does not exist",
    "bind mount failed:",
    "error while creating mount source path",
    "stale file handle",
    "transport endpoint is not connected",
    "host is down",
    // Devices, and what the kernel is asked for.
    "could not select device driver",
    "nvidia-container-cli: initialization error",
    "error gathering device information",
    "unable to apply cgroup configuration",
    "cgroup mountpoint does not exist",
    "open sysctl",
    "apparmor failed to apply profile",
    "unable to apply apparmor profile",
    "apparmor enabled on system",
    "containerd.sock: connect:",
    "context deadline exceeded",
    // Only the stop or the removal of an old container says these.
    "cannot stop container",
    "could not kill",
    "did not receive an exit event",
    "did not die within timeout",
    "cannot remove container",
    "removal of container",
    "failed to remove root filesystem",
    "unable to remove filesystem",
];

/// What an engine says of the program that it could not run, also where it quotes its runtime: the words after it are the image's.
const ABOUT_PROGRAM: [&str; 2] = ["exec: \"", "exec: \\\""];

/// Reports whether a line of an engine's or compose's words names a fault of the machine.
pub(crate) fn is_at_fault(output: &str) -> bool {
    let lines = output.lines().map(str::to_ascii_lowercase);
    lines
        .filter(|line| !ABOUT_PROGRAM.iter().any(|words| line.contains(words)))
        .any(|line| SIGNS.iter().any(|sign| line.contains(sign)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_machine_lacks_is_not_the_fault_of_the_image() {
        for line in [
            "Error response from daemon: mkdir /var/lib/docker/overlay2/1-init: no space left on device",
            "Error response from daemon: driver failed programming external connectivity on endpoint web (1): Bind for \
             0.0.0.0:80 failed: port is already allocated",
            "Error response from daemon: failed to set up container networking: Unable to enable DNAT rule: (iptables \
             failed: No chain/target/match by that name)",
            "Error response from daemon: error while mounting volume '/x': failed to mount local volume",
            "Error response from daemon: could not select device driver \"nvidia\" with capabilities: [[gpu]]",
            "Error response from daemon: netavark (exit code 1): nftables error: unable to execute nft",
            "nvidia-container-cli: initialization error: nvml error: driver not loaded",
            "Error response from daemon: failed to create task for container: OCI runtime create failed: runc create \
             failed: unable to start container process: error during container init: open sysctl \
             net.ipv4.ip_unprivileged_port_start file: reopen fd 8: permission denied",
            "Error response from daemon: OCI runtime create failed: unable to apply apparmor profile: apparmor failed to \
             apply profile: write /proc/self/attr/apparmor/exec: no such file or directory",
            "Error response from daemon: connection error: desc = \"transport: Error while dialing: dial unix \
             /run/containerd/containerd.sock: connect: connection refused\"",
            "Error response from daemon: cgroups: cgroup mountpoint does not exist: unknown",
            "Error response from daemon: error while creating mount source path '/mnt/x': mkdir /mnt/x: file exists",
            "Error response from daemon: Bind mount failed: '/volume2/docker/web' does not exists",
            // What an old container holds on to.
            "Error response from daemon: container 1442cf: driver \"overlay2\" failed to remove root filesystem: unlinkat \
             /var/lib/docker/overlay2/36/merged: device or resource busy",
            "Error response from daemon: unable to remove filesystem for 1442cf: unlinkat shm: device or resource busy",
            "Error response from daemon: Could not kill running container 1442cf, cannot remove - tried to kill \
             container, but did not receive an exit event",
            "Error response from daemon: cannot stop container: shop-web-1: permission denied",
            "Error response from daemon: removal of container 1442cf is already in progress",
            "Error: cannot remove container 1442cf as it could not be stopped: given PID did not die within timeout",
        ] {
            assert!(is_at_fault(line), "{line}");
        }
    }

    #[test]
    fn what_an_image_asks_for_contains_or_says_is_not_the_fault_of_the_machine() {
        for line in [
            "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.8",
            "nvidia-container-cli: mount error: file creation failed: /merged/libcuda.so.1: file exists",
            "Error response from daemon: OCI runtime create failed: exec: \"no space left on device\": executable file \
             not found in $PATH",
            "Error response from daemon: OCI runtime create failed: starting container process caused \"exec: \\\"no space \
             left on device\\\": executable file not found in $PATH\"",
            "Error response from daemon: unable to find user app: no matching entries in passwd file",
            "dependency failed to start: container web is unhealthy",
            "Error response from daemon: cannot start container: device or resource busy",
            "",
        ] {
            assert!(!is_at_fault(line), "{line}");
        }
    }
}
