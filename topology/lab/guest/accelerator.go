package guest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/relapse-dev/relapse/topology/lab/guest/launch"
	"github.com/relapse-dev/relapse/topology/status"
)

// Choice is an accelerator and the reason for it.
type Choice struct {
	Accelerator launch.Accelerator `json:"accelerator"`
	// NotKVM and NotUML say why KVM and UML are not used; empty if it is used or was not tried.
	NotKVM string `json:"notKVM,omitempty"`
	NotUML string `json:"notUML,omitempty"`
	// Image is the guest image that was tried.
	Image string `json:"image"`
}

// ChooseAccelerator chooses KVM if a guest boots under it within 10 seconds, else UML
// if one boots under that, else TCG. It boots guests from image, an image that Docker
// has, in containers with the given labels, and removes them. It stores the choice in
// the file remember and uses it again for the same image; the file must not survive a
// reboot. It is an error if the image lacks a file that guests need.
func ChooseAccelerator(ctx context.Context, docker *client.Client, image string, labels map[string]string, remember string) (Choice,
	error) {
	if text, err := os.ReadFile(remember); err == nil {
		var stored Choice
		if json.Unmarshal(text, &stored) == nil && stored.Image == image {
			return stored, nil
		}
	}
	choice, err := choose(image, func(a launch.Accelerator) (string, error) {
		return WhyNot(ctx, docker, image, labels, a)
	})
	if err != nil {
		return Choice{}, err
	}
	text, err := json.Marshal(choice)
	if err == nil {
		err = os.WriteFile(remember, text, 0o600)
	}
	if err != nil {
		return Choice{}, fmt.Errorf("storing the choice of an accelerator: %w", err)
	}
	return choice, nil
}

// choose tries accelerators in their order. whyNot returns why one cannot be used, or "" if it can.
func choose(image string, whyNot func(launch.Accelerator) (string, error)) (Choice, error) {
	choice := Choice{Image: image}
	for _, try := range []struct {
		accelerator launch.Accelerator
		reason      *string
	}{{launch.KVM, &choice.NotKVM}, {launch.UML, &choice.NotUML}} {
		reason, err := whyNot(try.accelerator)
		if err != nil {
			return Choice{}, fmt.Errorf("booting a guest under %s: %w", try.accelerator, err)
		}
		if reason == "" {
			choice.Accelerator = try.accelerator
			return choice, nil
		}
		*try.reason = reason
	}
	choice.Accelerator = launch.TCG
	return choice, nil
}

// WhyNot tries to boot a guest under KVM or UML, as ChooseAccelerator does. It returns
// why that cannot be used, or "" if it can.
func WhyNot(ctx context.Context, docker *client.Client, image string, labels map[string]string, a launch.Accelerator,
) (reason string, err error) {
	if _, err := os.Stat(kvmDevice); a == launch.KVM && errors.Is(err, fs.ErrNotExist) {
		return "there is no " + kvmDevice, nil
	}
	host := &container.HostConfig{NetworkMode: "none"}
	require(host, a, launch.ProbeMemory)
	created, err := docker.ContainerCreate(ctx, client.ContainerCreateOptions{HostConfig: host, Config: &container.Config{
		Image: image, Entrypoint: []string{"/usr/local/bin/guest", "probe", string(a)}, Labels: labels,
	}})
	if err != nil {
		return "", err
	}
	defer func() {
		_, removeErr := docker.ContainerRemove(context.WithoutCancel(ctx), created.ID,
			client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		err = errors.Join(err, removeErr)
	}()
	if _, err := docker.ContainerStart(ctx, created.ID, client.ContainerStartOptions{}); err != nil {
		return "", err
	}
	var code int64
	wait := docker.ContainerWait(ctx, created.ID, client.ContainerWaitOptions{Condition: container.WaitConditionNotRunning})
	select {
	case err := <-wait.Error:
		return "", err
	case status := <-wait.Result:
		if status.StatusCode == 0 {
			return "", nil
		}
		code = status.StatusCode
	}
	said, err := Log(ctx, docker, created.ID, time.Time{}, false)
	if err != nil {
		return "", err
	}
	reason = strings.TrimPrefix(strings.TrimSpace(said), "guest: ")
	if code == launch.ImageStatus {
		return "", status.Machine("image %s: %s", image, reason)
	}
	return reason, nil
}
