package guest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/client"
	"github.com/docker/docker/pkg/stdcopy"

	"github.com/relapse-dev/relapse/topology/lab/guest/launch"
)

// Accelerator is what executes a guest's code.
type Accelerator = launch.Accelerator

// Accelerators.
const (
	KVM = launch.KVM // the CPU itself
	TCG = launch.TCG // QEMU's translator: runs everywhere, and is 15 to 20 times slower
)

// Choice is an accelerator, and why it was chosen.
type Choice struct {
	Accelerator Accelerator `json:"accelerator"`
	// Reason says why KVM is not used; empty if it is.
	Reason string `json:"reason,omitempty"`
	// Image is the guest image that was tried.
	Image string `json:"image"`
}

// ChooseAccelerator chooses KVM if a guest boots under it within 10 seconds, and
// TCG otherwise. The guest is booted from image, an image that Docker has, in a
// container with the given labels that is removed before the call returns. The
// choice is stored in the file remember and used again for the same image: the
// file must be gone after the machine reboots. The error is an *ImageError if
// the image lacks something that a guest needs.
func ChooseAccelerator(ctx context.Context, docker *client.Client, image string, labels map[string]string, remember string) (Choice, error) {
	if text, err := os.ReadFile(remember); err == nil {
		var known Choice
		if json.Unmarshal(text, &known) == nil && known.Image == image {
			return known, nil
		}
	}
	choice := Choice{Accelerator: KVM, Image: image}
	reason, err := probe(ctx, docker, image, labels)
	if err != nil {
		return Choice{}, fmt.Errorf("trying whether KVM boots guests: %w", err)
	}
	if reason != "" {
		choice.Accelerator, choice.Reason = TCG, reason
	}
	text, err := json.Marshal(choice)
	if err == nil {
		err = os.WriteFile(remember, text, 0o600)
	}
	if err != nil {
		return Choice{}, fmt.Errorf("remembering whether KVM boots guests: %w", err)
	}
	return choice, nil
}

// ImageError says that an image cannot run guests.
type ImageError struct {
	Image string // as Docker knows it
	Says  string
}

func (e *ImageError) Error() string { return fmt.Sprintf("image %s: %s", e.Image, e.Says) }

// probe returns why KVM cannot be used, or nothing if it can.
func probe(ctx context.Context, docker *client.Client, image string, labels map[string]string) (reason string, err error) {
	if _, err := os.Stat("/dev/kvm"); errors.Is(err, fs.ErrNotExist) {
		return "there is no /dev/kvm", nil
	}
	created, err := docker.ContainerCreate(ctx, &container.Config{
		Image: image, Entrypoint: []string{"/usr/local/bin/guest", "probe"}, Labels: labels,
	}, &container.HostConfig{
		NetworkMode: "none",
		Resources:   container.Resources{Devices: []container.DeviceMapping{device("/dev/kvm")}},
	}, nil, nil, "")
	if err != nil {
		return "", err
	}
	defer func() {
		err = errors.Join(err, docker.ContainerRemove(context.WithoutCancel(ctx), created.ID, container.RemoveOptions{Force: true, RemoveVolumes: true}))
	}()
	if err := docker.ContainerStart(ctx, created.ID, container.StartOptions{}); err != nil {
		return "", err
	}
	var code int64
	ended, failed := docker.ContainerWait(ctx, created.ID, container.WaitConditionNotRunning)
	select {
	case err := <-failed:
		return "", err
	case status := <-ended:
		if status.StatusCode == 0 {
			return "", nil
		}
		code = status.StatusCode
	}
	stream, err := docker.ContainerLogs(ctx, created.ID, container.LogsOptions{ShowStdout: true, ShowStderr: true})
	if err != nil {
		return "", err
	}
	defer stream.Close()
	var said bytes.Buffer
	if _, err := stdcopy.StdCopy(&said, &said, stream); err != nil {
		return "", err
	}
	reason = strings.TrimPrefix(strings.TrimSpace(said.String()), "guest: ")
	if code == launch.ImageStatus {
		return "", &ImageError{Image: image, Says: reason}
	}
	return reason, nil
}
