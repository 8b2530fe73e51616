package host

import (
	"archive/tar"
	"bytes"
	"context"
	"debug/elf"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/system"
	"github.com/moby/moby/client"
)

const (
	defaultSocket = "/var/run/docker.sock"
	dockerLog     = "/var/log/docker.log"
	// runtimeName is the shim's name among Docker's OCI runtimes.
	runtimeName = "runc-caps"
	// trialLabel is the label of every lab's containers: "down" also removes a
	// trial that was killed.
	trialLabel = "dev.relapse.lab"
)

// answerBound bounds the time for one answer of Docker. A healthy engine takes
// milliseconds, and seconds while it starts or stops many containers.
const answerBound = 30 * time.Second

func engineInfo(ctx context.Context) (system.Info, string, error) {
	docker, err := client.New(client.FromEnv)
	if err != nil {
		return system.Info{}, "", err
	}
	defer docker.Close()
	ctx, cancel := context.WithTimeout(ctx, answerBound)
	defer cancel()
	answer, err := docker.Info(ctx, client.InfoOptions{})
	return answer.Info, docker.DaemonHost(), err
}

func observeEngine(ctx context.Context) engine {
	e := engine{installed: find("dockerd") != "", command: find("docker") != ""}
	e.split = !e.command && offered(ctx, dockerCommandPackage)
	var info system.Info
	if info, e.address, e.err = engineInfo(ctx); e.err == nil {
		e.version, e.root, e.runtime = info.ServerVersion, info.DockerRootDir, info.DefaultRuntime
		e.rootless = slices.Contains(info.SecurityOptions, "name=rootless")
		if slices.Contains(info.DriverStatus, [2]string{"driver-type", "io.containerd.snapshotter.v1"}) {
			e.root = "/var/lib/containerd" // has the images, as in new installations from Docker 29 on
		}
	}
	return e
}

func tryPrivileged(ctx context.Context) (err error) {
	docker, err := client.New(client.FromEnv)
	if err != nil {
		return err
	}
	defer docker.Close()
	ctx, cancel := context.WithTimeout(ctx, answerBound)
	defer cancel()
	// The container is removed even if ctx has ended.
	clean, cancelClean := context.WithTimeout(context.WithoutCancel(ctx), answerBound)
	defer cancelClean()

	imageID, err := importImage(ctx, docker, doNothing())
	if err != nil {
		return fmt.Errorf("importing an image: %w", err)
	}
	defer func() {
		_, removeErr := docker.ImageRemove(clean, imageID, client.ImageRemoveOptions{Force: true})
		err = errors.Join(err, removeErr)
	}()
	created, err := docker.ContainerCreate(ctx, client.ContainerCreateOptions{
		Config:     &container.Config{Image: imageID, Cmd: []string{"/true"}, Labels: map[string]string{trialLabel: "doctor"}},
		HostConfig: &container.HostConfig{Privileged: true, NetworkMode: "none"},
	})
	if err != nil {
		return fmt.Errorf("creating a container: %w", err)
	}
	defer func() {
		_, removeErr := docker.ContainerRemove(clean, created.ID, client.ContainerRemoveOptions{Force: true})
		err = errors.Join(err, removeErr)
	}()
	if _, err := docker.ContainerStart(ctx, created.ID, client.ContainerStartOptions{}); err != nil {
		return err
	}
	wait := docker.ContainerWait(ctx, created.ID, client.ContainerWaitOptions{Condition: container.WaitConditionNotRunning})
	select {
	case end := <-wait.Result:
		if end.StatusCode != 0 {
			return fmt.Errorf("a container that does nothing ended with status %d", end.StatusCode)
		}
		return nil
	case err := <-wait.Error:
		return fmt.Errorf("waiting for a container: %w", err)
	}
}

// importImage makes an image that holds only program, as /true, and returns its
// ID. The image has no tag.
func importImage(ctx context.Context, docker *client.Client, program []byte) (string, error) {
	var layer bytes.Buffer
	archive := tar.NewWriter(&layer)
	header := &tar.Header{Name: "true", Mode: 0o755, Size: int64(len(program))}
	if err := archive.WriteHeader(header); err != nil {
		return "", err
	}
	if _, err := archive.Write(program); err != nil {
		return "", err
	}
	if err := archive.Close(); err != nil {
		return "", err
	}
	answer, err := docker.ImageImport(ctx, client.ImageImportSource{Source: &layer, SourceName: "-"}, "", client.ImageImportOptions{})
	if err != nil {
		return "", err
	}
	defer answer.Close()
	var id string
	for lines := json.NewDecoder(answer); ; {
		var line struct {
			Status string `json:"status"`
			Error  string `json:"error"`
		}
		switch err := lines.Decode(&line); {
		case errors.Is(err, io.EOF):
			return id, nil
		case err != nil:
			return "", err
		case line.Error != "":
			return "", errors.New(line.Error)
		}
		id = line.Status // the last line holds the ID
	}
}

// doNothing is a static Linux program for amd64 that ends at once with status 0.
// A machine that cannot reach a registry has no other image to try.
func doNothing() []byte {
	const base = 0x400000
	code := []byte{
		0xb8, 60, 0, 0, 0, // mov eax, 60 (exit)
		0x31, 0xff, // xor edi, edi
		0x0f, 0x05, // syscall
	}
	var header elf.Header64
	var segment elf.Prog64
	start := uint64(binary.Size(header) + binary.Size(segment))
	size := start + uint64(len(code))
	header = elf.Header64{
		Ident: [elf.EI_NIDENT]byte{
			0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT),
		},
		Type: uint16(elf.ET_EXEC), Machine: uint16(elf.EM_X86_64), Version: uint32(elf.EV_CURRENT),
		Entry: base + start, Phoff: uint64(binary.Size(header)),
		Ehsize: uint16(binary.Size(header)), Phentsize: uint16(binary.Size(segment)), Phnum: 1,
	}
	segment = elf.Prog64{
		Type: uint32(elf.PT_LOAD), Flags: uint32(elf.PF_R | elf.PF_X),
		Vaddr: base, Paddr: base, Filesz: size, Memsz: size, Align: 0x1000,
	}
	var program bytes.Buffer
	for _, part := range []any{header, segment, code} {
		_ = binary.Write(&program, binary.LittleEndian, part) // cannot fail: a buffer, and fixed sizes
	}
	return program.Bytes()
}
