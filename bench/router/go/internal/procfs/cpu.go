// Package procfs reads what the kernel counts for other processes.
package procfs

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
)

const ticksPerSecond = 100 // USER_HZ, the same on every Linux that Go knows

// CPU is the user and system time that processes have used so far, all their threads together, in seconds.
func CPU(pids []int) (float64, error) {
	ticks := 0
	for _, pid := range pids {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return 0, err
		}
		// The name, in brackets, may hold spaces and brackets: fields are counted from the last one.
		fields := bytes.Fields(line[bytes.LastIndexByte(line, ')')+1:])
		for _, field := range fields[11:13] { // utime, stime
			n, err := strconv.Atoi(string(field))
			if err != nil {
				return 0, fmt.Errorf("/proc/%d/stat: %w", pid, err)
			}
			ticks += n
		}
	}
	return float64(ticks) / ticksPerSecond, nil
}
