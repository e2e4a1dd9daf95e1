#!/usr/bin/env bash
# Start-up script of a training VM, written by `gpu-pipelines vm`. At every start of the VM it checks the GPUs, pulls the
# image, trains, copies checkpoints and its log to Cloud Storage, and then stops or deletes the VM.
# All that it prints is on the serial port: gcloud compute instances get-serial-port-output NAME --zone ZONE
set -uo pipefail

#@settings@

# The end of a training that was told to stop and continues at the next start (EX_TEMPFAIL).
readonly interrupted=75
readonly container=training
readonly end_of_log="end of the log"
readonly metadata=http://metadata.google.internal/computeMetadata/v1/instance
# Start-up scripts get neither from Compute Engine, and gcloud and docker keep their settings in HOME.
export HOME="${HOME:-/root}" PATH="$PATH:/snap/bin"

told_to_stop=""
helpers=()

say() { printf '%s gpu-pipelines: %s\n' "$(date -u +%H:%M:%S)" "$*"; }

fail() {
  say "error: $*"
  exit 1
}

# Shows what a command says only if it fails.
quietly() {
  local said status
  said=$("$@" 2>&1)
  status=$?
  ((status == 0)) || say "$said"
  return "$status"
}

# The log is a file, so that it is whole when it is copied; what is added to it is shown as well.
open_log() {
  if ! { mkdir -p "$state_directory" && log=$(mktemp "$state_directory/$vm_name-$(date -u +%Y%m%d-%H%M%S)-XXX.log"); }; then
    say "error: a log cannot be written in $state_directory"
    say "the start-up script ends with exit status 1"
    end_vm
    exit 1
  fi
  exec 3>&1 >>"$log" 2>&1
  # Nothing else keeps the output open, for whose end the caller waits.
  sed --unbuffered "/ gpu-pipelines: $end_of_log\$/q" < <(exec tail -n +1 -s 0.2 -f --pid=$$ "$log" 3>&-) >&3 3>&- &
  shown_by=$!
  exec 3>&-
}

close_log() {
  say "$end_of_log"
  wait "$shown_by"
}

# The driver may still be being installed at the first start of a Deep Learning VM.
check_gpus() {
  local names found deadline=$((SECONDS + driver_seconds))
  # With a broken GPU it may never come back.
  until names=$(timeout "$((deadline - SECONDS + 5))" nvidia-smi --query-gpu=name --format=csv,noheader 2>&1); do
    ((SECONDS < deadline)) || fail "nvidia-smi does not answer within $driver_seconds s: $names"
    sleep 5
  done
  found=$(grep -c . <<<"$names")
  say "GPUs: $(sort <<<"$names" | uniq -c | xargs)"
  ((found == gpu_count)) || fail "nvidia-smi shows $found GPUs; the plan has $gpu_count"
}

pull_image() {
  local pause
  if [[ -n $registry ]]; then
    gcloud auth configure-docker "$registry" --quiet || fail "docker cannot be given access to $registry"
  fi
  say "pulling $image"
  # At a start of the VM docker, its network or the token of the service account may not be ready.
  for pause in "${pull_pauses[@]}"; do
    docker pull --quiet "$image" && return
    [[ -z $told_to_stop ]] || exit "$interrupted"
    say "it is tried again in $pause s"
    sleep "$pause"
  done
  docker pull --quiet "$image" ||
    fail "$image cannot be pulled; the VM's service account needs roles/artifactregistry.reader there"
}

# What an earlier start has left in Cloud Storage. The user of the image need not be root.
fetch_synced_directory() {
  [[ -n $sync_directory ]] || return 0
  mkdir -p "$state_directory/synced"
  if gcloud storage ls "$output_directory/checkpoints/" >/dev/null 2>&1; then
    say "fetching $output_directory/checkpoints"
    quietly gcloud storage rsync --recursive "$output_directory/checkpoints" "$state_directory/synced" ||
      fail "$output_directory/checkpoints cannot be read; the VM's service account needs roles/storage.objectUser there"
  fi
  chmod -R a+rwX "$state_directory/synced"
}

# One copy at a time: the last one begins when that of the helper has ended.
copy_out() (
  [[ -n $output_directory ]] || return 0
  flock 9
  if [[ -n $sync_directory ]]; then
    quietly gcloud storage rsync --recursive "$state_directory/synced" "$output_directory/checkpoints" ||
      say "warning: checkpoints were not copied to $output_directory/checkpoints"
  fi
  quietly gcloud storage cp "$log" "$output_directory/vm-logs/" ||
    say "warning: the log was not copied to $output_directory/vm-logs"
) 9>"$state_directory/copying"

copy_now_and_then() {
  while sleep "$sync_seconds"; do copy_out; done
}

# Compute Engine says so 30 seconds before it stops a Spot VM. systemd does not always pass that on to this script.
watch_for_preemption() {
  local preempted
  while true; do
    preempted=$(curl --silent --fail --header "Metadata-Flavor: Google" \
      "$metadata/preempted?wait_for_change=true&timeout_sec=5") || sleep 5
    if [[ $preempted == TRUE ]]; then
      kill -TERM $$
      return
    fi
  done
}

# Runs a function beside the training; it is killed at the end.
beside() {
  "$1" &
  helpers+=($!)
  disown
}

stop_training() {
  ((BASHPID == $$)) || exit
  told_to_stop=yes
  say "told to stop: the training has $grace_seconds s to write a checkpoint"
  docker stop -t "$grace_seconds" "$container" >/dev/null 2>&1 &
}

train() {
  local status
  docker rm --force "$container" >/dev/null 2>&1
  # The user of the image need not be root.
  if [[ -n $work_directory ]]; then mkdir -p "$state_directory/work" && chmod 1777 "$state_directory/work"; fi
  beside copy_now_and_then
  beside watch_for_preemption
  say "training begins"
  docker run --name "$container" --rm --init --gpus all --network host --ipc host --ulimit memlock=-1 \
    --stop-timeout "$grace_seconds" --log-driver none "${docker_options[@]}" "$image" "${words[@]}" &
  local training=$!
  # A signal ends `wait` before the training has ended.
  while true; do
    wait "$training"
    status=$?
    kill -0 "$training" 2>/dev/null || break
  done
  ((status == 0)) || say "the training failed with exit status $status"
  return "$status"
}

# Maintenance ends the VM by way of systemd, and starts it again where it was not deleted.
being_shut_down() { [[ $(systemctl is-system-running 2>/dev/null) == stopping ]]; }

end_vm() {
  case $at_end in
    delete)
      gcloud compute instances delete "$vm_name" --zone="$zone" --quiet && return
      say "warning: the VM cannot delete itself (roles/compute.instanceAdmin.v1); it is stopped instead"
      shutdown -h now
      ;;
    stop) shutdown -h now ;;
    keep) ;;
  esac
}

finish() {
  local status=$?
  # A signal that reaches a subshell before it has put the traps away runs them there.
  ((BASHPID == $$)) || exit
  trap - EXIT
  trap '' TERM INT
  ((${#helpers[@]})) && kill -KILL "${helpers[@]}" 2>/dev/null
  if [[ -n $told_to_stop ]] || being_shut_down; then
    say "interrupted; the next start of the VM, or a new one like it, continues"
    copy_out
    close_log
    exit "$interrupted"
  fi
  if ((status == 0)); then
    say "the training has ended"
    touch "$state_directory/finished"
  else
    say "the start-up script ends with exit status $status"
  fi
  say "what becomes of the VM: $at_end"
  copy_out
  end_vm
  close_log
  exit "$status"
}

main() {
  open_log
  if [[ -e $state_directory/finished ]]; then
    say "the training has ended at an earlier start; to train again: rm $state_directory/finished, and start again"
    close_log
    exit 0
  fi
  trap finish EXIT
  trap stop_training TERM INT
  check_gpus
  pull_image
  fetch_synced_directory
  [[ -z $told_to_stop ]] || exit "$interrupted"
  train
}

main
